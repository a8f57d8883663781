"""A folder with all that a training elsewhere needs, but for the models: `otca bundle`, and the page's Export….

contents   a graph → what is copied, what is expected there, and the graph by the names that these have in a bundle
found      where the models are that a graph names, and by which names a bundle expects them
packages   the exact packages of this Python, and the pack's own files
manifest   sizes and SHA-256 of all of it, written and read
making     writes the folder or the zip, with what is known of memory and time; its scripts are assets/bundle/
checking   whether a bundle, the models and the machine are as the manifest wants them
"""

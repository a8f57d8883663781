"""Runs that live on another machine: `otca serve` there shows one, and the sidebar here keeps a copy of it up to date.

The copy is a folder among the other runs, with all that the page shows of a run: graph, figures, pictures, log; checkpoints stay
where they are, and the adapter comes when it is asked for. So curves, samples and comparing work as for any run. Nothing of this
machine's is sent but the token and, on a click, the wish to stop.
"""

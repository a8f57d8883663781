"""The machine that a training runs on. Nothing here imports the trainer, so that all else may stand on it.

what was asked for     stopping     Stop: ComfyUI's button, a signal, a file; progress bars
                       comfyui      ComfyUI's queue and pages, where it runs us
devices and memory     devices      the accelerator, its free memory, and the networks that make room and come back
several processes      distributed  who they are, which samples are whose, where they meet, sharded models
                       claim        one process trains in a run's folder, every other one is refused
                       machine      which machine and which start of it, living processes, locks on files
folders                paths        where runs, models and input files are
                       search       the model or file that a graph names
                       own_folders  folders that we made, and so may replace and remove
files                  files        one plain file: opened as it is, written whole or not at all
                       json_files   JSON, read strictly, and what its values must be
                       text         names that become files on any system, and text that can be shown
permission             access/      what a workflow may read, reach, download and run
"""

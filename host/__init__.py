"""The machine that a training runs on. Nothing here imports the trainer, so that all else may stand on it.

what the user says     environment  variables: read, set and handed on here alone
what was asked for     stopping     Stop: ComfyUI's button, a signal, a file; progress bars
                       comfyui      ComfyUI's queue and pages, where it runs us
devices and memory     devices      the accelerator, its free memory, and the networks that make room and come back
several processes      distributed  who they are, which samples are whose, where they meet, sharded models
                       processes    starts `otca` again: the one place where processes begin
                       claim        one process trains in a run's folder, every other one is refused
folders                paths        where runs, models and input files are
                       search       the model or file that a graph names
                       places       what lies outside of the pack, which `otca where` lists
                       own_folders  folders that we made, and so may replace and remove
files                  files        one plain file: opened as it is, written whole or not at all
                       json_files   JSON, read strictly, and what its values must be
                       text         names that become files on any system, and text that can be shown
packages               extras       those that ComfyUI does not bring: what lacks, and the command that adds it
requests to servers    network      sessions, their limits of time and of bytes
permission             access/      what a workflow may read, reach, download and run
"""

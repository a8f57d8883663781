"""Studies of pictures, models, workflows and trainings, outside a training: one file a question and its figures."""

"""The merge of pieces: the files of datasets are tasks, which an engine runs."""

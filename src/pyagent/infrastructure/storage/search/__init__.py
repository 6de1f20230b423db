"""Search on disk: an index for each tenant's runs and each folder, kept beside the journal. It can be made again."""

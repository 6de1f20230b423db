"""Learning which of several choices serves best, from rewards. Pure: where rewards are kept is a store's business."""

"""Other people's protocols on the same two writes, one room each.

    election    leaders by epochs: one object per epoch, and the epoch is the fencing token
    wal         a write-ahead log whose slots are claimed by creating them, with fencing slots
    queue       a queue in one file: alone, by group commit, or through a broker
    terraform   Terraform's lock file
    striped     a lock for each stripe of keys
    granular    Ozone's locks of volume, bucket and key, within a process
    scenes      all of them in the simulator

All are procedures, so that the simulator, the notebook's stage and a real store run the same text;
each names its safety decisions as fields of its `...Rules`.
"""

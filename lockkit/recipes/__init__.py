"""Other people's protocols on the same two conditional writes, one package or module each.

    election    leaders by epochs: one object per epoch, and the epoch is the fencing token
    wal         a write-ahead log whose slots are claimed by creating them, with fencing slots
    queue       a queue in one file: alone, by group commit, or through a broker
    terraform   Terraform's lock file
    striped     a lock for each stripe of keys
    granular    Ozone's locks of volume, bucket and key, within a process
    scenes      all of them in the simulator

All are procedures, so that the simulator, the notebooks' stepper and a real store run the same
code. The safety rules are small functions that the planted mistakes replace.
"""

"""Rules of XLA for TPUs, whose compiler has no public source: all were observed in compiled programs."""

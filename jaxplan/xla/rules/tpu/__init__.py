"""Rules of XLA for TPUs: its compiler has no public source, so all were observed in compiled programs."""

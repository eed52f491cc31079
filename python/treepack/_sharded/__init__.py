"""Checkpoints of many processes: a directory with a file of shards from each, and a manifest.

    checkpoint/
      manifest.treepack          written last: structure, global shapes, which file has which shard
      1f0c9a2e-00000.treepack    the shards of process 0, a file as `save` writes it
      1f0c9a2e-00001.treepack    the shards of process 1
      lease.treepack             there while somebody saves

| file | what is there |
|---|---|
| `shards.py` | how arrays are split, and which process writes which shard |
| `group.py` | what processes tell each other |
| `identity.py` | what makes a save the same in all of them |
| `lease.py` | which job may save to a directory |
| `writing.py` | the files, and the manifest that commits them |
| `reading.py` | arrays that are put together from shards |
"""

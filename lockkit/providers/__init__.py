"""Other services that grant a lock, behind the face of `lockkit.Lock`: one file each."""

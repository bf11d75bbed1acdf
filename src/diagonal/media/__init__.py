"""Videos and pictures as files, and what is drawn into them. Files appear whole or not at all."""

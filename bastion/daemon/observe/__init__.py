"""From the bucket and the provisioners to one `World`."""

"""TensorBoard over a bastion's bucket: a mirror of jobs' event files, and scalars of their goodput."""

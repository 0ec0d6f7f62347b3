"""Ways into the hosts of running jobs, by place (`bastion.ports.HostEntry`)."""

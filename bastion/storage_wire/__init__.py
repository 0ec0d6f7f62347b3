"""What the storage API's requests and answers look like: for the endpoint that serves it, and the proxy in its way."""

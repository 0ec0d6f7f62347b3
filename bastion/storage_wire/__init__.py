"""The storage API's requests and answers, for the endpoint that serves it and the proxy in front of it."""

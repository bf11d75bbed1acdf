"""Where everything is wired together: from names and files to models, and from requests to videos."""

"""Models over HTTP and WebSockets: worlds that are played in a browser, and video as it is made (docs/serving.md).

    app.py           the application: its routes, its page
    world_socket.py  one WebSocket; player.py who plays; ticker.py the thread in which a world's model runs

Needs the extra: pip install 'diagonal[serve]'.
"""

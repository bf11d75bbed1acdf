"""Networks that look at videos: LPIPS, and the judges of actions and captions. Trained in one room, used in another."""

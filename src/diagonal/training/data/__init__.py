"""What training learns from: recordings, clips with captions, prompts, trajectories of a teacher."""

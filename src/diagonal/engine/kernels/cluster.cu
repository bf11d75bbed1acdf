// A kernel that does nothing, in clusters of SIZE programs: the driver says how many of them find room at once.

extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) nothing() {}

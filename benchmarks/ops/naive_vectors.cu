// A straightforward kernel: one thread per element, each with its own binary search.
#include <cuda_bf16.h>

extern "C" __global__ void naive_resample(const __nv_bfloat16* source, const long long* times, const long long* targets,
                                          __nv_bfloat16* out, int batches, int samples, int count, int width, int pitch,
                                          int column) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i >= (long long)batches * count * width) return;
  int d = i % width;
  long long row = i / width, batch = row / count;
  const long long* stamps = times + batch * samples;
  long long t = targets[row];
  int low = 0, high = samples;
  while (low < high) {
    int middle = (low + high) / 2;
    if (stamps[middle] <= t) low = middle + 1;
    else high = middle;
  }
  int upper = min(max(low, 1), samples - 1), lower = upper - 1;
  double share = (double)(t - stamps[lower]) / (double)(stamps[upper] - stamps[lower]);
  float a = fminf(fmaxf((float)share, 0.0f), 1.0f);
  float before = __bfloat162float(source[(batch * samples + lower) * width + d]);
  float after = __bfloat162float(source[(batch * samples + upper) * width + d]);
  out[row * pitch + column + d] = __float2bfloat16(before + a * (after - before));
}

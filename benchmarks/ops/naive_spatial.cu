// Straightforward kernels: one thread per point, one thread per output pixel.
extern "C" __global__ void count_points(const float* points, int* grid, int n, float low, float size, int side) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = (int)floorf((points[3 * i] - low) / size);
  int y = (int)floorf((points[3 * i + 1] - low) / size);
  int z = (int)floorf((points[3 * i + 2] - low) / size);
  if (x >= 0 && x < side && y >= 0 && y < side && z >= 0 && z < side) atomicAdd(&grid[(x * side + y) * side + z], 1);
}

extern "C" __global__ void mean_points(const float* points, float* sums, int n, float low, float size, int side) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = (int)floorf((points[7 * i] - low) / size);
  int y = (int)floorf((points[7 * i + 1] - low) / size);
  int z = (int)floorf((points[7 * i + 2] - low) / size);
  if (x < 0 || x >= side || y < 0 || y >= side || z < 0 || z >= side) return;
  int cells = side * side * side, cell = (x * side + y) * side + z;
  for (int f = 0; f < 4; ++f) atomicAdd(&sums[f * cells + cell], points[7 * i + 3 + f]);
  atomicAdd(&sums[4 * cells + cell], 1.0f);
}

extern "C" __global__ void divide(float* sums, int cells) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= cells) return;
  float n = fmaxf(sums[4 * cells + i], 1.0f);
  for (int f = 0; f < 4; ++f) sums[f * cells + i] /= n;
}

extern "C" __global__ void resize(
    const unsigned char* image, unsigned short* out, int width, int height, int out_width, int out_height
) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= out_width * out_height) return;
  int x = i % out_width, y = i / out_width;
  float u = fmaxf((x + 0.5f) * width / out_width - 0.5f, 0.0f), v = fmaxf((y + 0.5f) * height / out_height - 0.5f, 0.0f);
  int x0 = (int)u, y0 = (int)v, x1 = min(x0 + 1, width - 1), y1 = min(y0 + 1, height - 1);
  float a = u - x0, b = v - y0;
  const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
  for (int c = 0; c < 3; ++c) {
    float top = image[(y0 * width + x0) * 3 + c] * (1 - a) + image[(y0 * width + x1) * 3 + c] * a;
    float bottom = image[(y1 * width + x0) * 3 + c] * (1 - a) + image[(y1 * width + x1) * 3 + c] * a;
    float value = ((top * (1 - b) + bottom * b) / 255.0f - mean[c]) / std[c];
    out[c * out_width * out_height + i] = __float_as_uint(value) + 0x8000 >> 16;
  }
}

extern "C" __global__ void nothing() {}

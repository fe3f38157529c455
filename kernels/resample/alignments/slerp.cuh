// robocache_ros/alignments/slerp.py in CUDA.
#pragma once
#include "common/number.cuh"

namespace robocache::alignments {

HD float dot(const float* p, const float* q) {
  return add(add(add(mul(p[0], q[0]), mul(p[1], q[1])), mul(p[2], q[2])), mul(p[3], q[3]));
}

// sin(t * angle) / sin(angle) for y = cos(angle) - 1 in [-0.3, 0]; slerp.py names the source of the series.
HD float sine_ratio(float t, float y) {
  float square = mul(t, t), total = 1.0f;
  UNROLL
  for (int i = 8; i >= 1; --i) {
    const float u = (float)(1.0 / (i * (2 * i + 1))), v = (float)((double)i / (2 * i + 1));
    total = add(1.0f, mul(mul(sub(mul(u, square), v), y), total));
  }
  return mul(t, total);
}

// The arc is halved first, because the series converges on half of it.
HD void slerp(const float* before, const float* after, float weight, float* out) {
  float cosine = dot(before, after);
  float lengths = mul(dot(before, before), dot(after, after));
  float w0 = sub(1.0f, weight), w1 = weight;
  if (lengths > 0) {
    float size = div(fabsf(cosine), root(lengths));
    float half_cosine = root(mul(add(1.0f, size > 1.0f ? 1.0f : size), 0.5f));
    bool first_half = weight <= 0.5f;
    float part = first_half ? add(weight, weight) : sub(add(weight, weight), 1.0f);
    float y = sub(half_cosine, 1.0f);
    float start = sine_ratio(sub(1.0f, part), y), end = sine_ratio(part, y);
    float middle = div(first_half ? end : start, add(half_cosine, half_cosine));
    w0 = first_half ? add(start, middle) : middle;
    w1 = first_half ? middle : add(middle, end);
    if (cosine < 0) w1 = -w1;
  }
  UNROLL
  for (int i = 0; i < 4; ++i) out[i] = add(mul(w0, before[i]), mul(w1, after[i]));
}

}  // namespace robocache::alignments

// Which samples a target is made of: the search of robocache_ros/ops/pick.py, for one target.
#pragma once
#include "item.cuh"

namespace robocache {

const int64 NEVER = -0x7fffffffffffffffLL - 1;  // a stamp that no sample is used at and no target is served at

// Nanoseconds of float seconds: seconds * 1e9 in float64 to the nearest, kept within 2^62; NaN is NEVER.
HD int64 nanoseconds(double seconds) {
  const double limit = 4611686018427387904.0;
  if (!(seconds == seconds)) return NEVER;
  double whole = nearest_whole(seconds * 1e9);
  return (int64)(whole > limit ? limit : whole < -limit ? -limit : whole);
}
HD int64 nanoseconds(float seconds) { return nanoseconds((double)seconds); }
HD int64 nanoseconds(int64 stamp) { return stamp; }

HD int64 minus(int64 a, int64 b) { return (int64)((unsigned long long)a - (unsigned long long)b); }

struct Limits {
  int64 max_gap, max_age;  // ns
};

// Times in memory as the caller gave them; the staged ones are read through a plain const int64*.
template <class Time>
struct Stamps {
  const Time* at;
  HD int64 operator[](int i) const { return nanoseconds(at[i]); }
};

// The first of `size` rising stamps that is above t (or, with `or_equal`, not below it).
template <class Times>
HD int first_above(const Times& stamps, int size, int64 t, bool or_equal) {
  int low = 0;
  while (size > 0) {
    int half = size >> 1;
    int64 stamp = stamps[low + half];
    bool right = or_equal ? stamp < t : stamp <= t;
    low = right ? low + half + 1 : low;
    size = right ? size - half - 1 : half;
  }
  return low;
}

// The neighbours of t: of the latest sample at or before it, and of the earliest after it, the first in row order; -1 if
// there is none. Rising stamps are searched by halves, others one by one, to the same result.
template <class Times>
HD void neighbours(const Times& stamps, int size, bool rising, int64 t, int& lower, int& upper) {
  lower = upper = -1;
  if (rising) {
    int above = first_above(stamps, size, t, false);
    if (above < size) upper = above;
    if (above > 0 && stamps[above - 1] != NEVER) {
      lower = above - 1;
      int64 stamp = stamps[lower];
      if (lower > 0 && stamps[lower - 1] == stamp) lower = first_above(stamps, lower, stamp, true);
    }
    return;
  }
  int64 before = NEVER, after = 0;
  for (int i = 0; i < size; ++i) {
    int64 stamp = stamps[i];
    if (stamp == NEVER) continue;
    if (stamp <= t) {
      if (lower < 0 || stamp > before) lower = i, before = stamp;
    } else if (upper < 0 || stamp < after) {
      upper = i, after = stamp;
    }
  }
}

template <Method METHOD, class Times>
HD Pick pick(const Times& stamps, int size, bool rising, int64 t, const Limits& limits, int64& age) {
  Pick found = {-1, -1, 0.0f, 0};
  age = 0;
  if (t == NEVER) return found;
  int lower, upper;
  neighbours(stamps, size, rising, t, lower, upper);
  int64 behind = lower < 0 ? 0 : minus(t, stamps[lower]), ahead = upper < 0 ? 0 : minus(stamps[upper], t);
  if (METHOD == NEAREST) {
    bool earlier = lower >= 0 && (upper < 0 || behind <= ahead);  // the earlier one on a tie
    int row = earlier ? lower : upper;
    if (row < 0 || (earlier ? behind : ahead) > limits.max_age) return found;
    age = earlier ? behind : -ahead;
    return Pick{row, row, 0.0f, 1};
  }
  if (lower < 0) return found;
  if (METHOD != HOLD) {
    int64 gap = upper < 0 ? 0 : minus(stamps[upper], stamps[lower]);
    if (behind == 0) return Pick{lower, lower, 0.0f, 1};
    if (upper >= 0 && gap <= limits.max_gap) {
      age = behind;
      return Pick{lower, upper, (float)ratio(behind, gap), 1};
    }
  }
  if (behind > limits.max_age) return found;
  age = behind;
  return Pick{lower, lower, 0.0f, METHOD == HOLD ? 1 : 2};
}

}  // namespace robocache

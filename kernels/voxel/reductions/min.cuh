// Minimum of each feature.
#pragma once
#include "voxel/term.cuh"

namespace robocache {

struct Reduction : Extreme<false> {};

}  // namespace robocache

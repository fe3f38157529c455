// Maximum of each feature.
#pragma once
#include "voxel/term.cuh"

namespace robocache {

struct Reduction : Extreme<true> {};

}  // namespace robocache

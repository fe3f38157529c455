// Programmatic dependent launch, from compute capability 9.0 on: a launch begins while the one before it still runs.
#pragma once
#include "common/number.cuh"

namespace robocache {

// Lets the next launch begin; its threads wait in `wait_for_previous` until this one has ended.
HD void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Before it, nothing may be touched that an earlier launch reads or writes.
HD void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace robocache

// Programmatic dependent launch, from compute capability 9.0 on: a kernel starts while the previous one on the stream still runs.
#pragma once
#include "common/number.cuh"

namespace robocache {

// Lets the next kernel start. Its threads wait in `wait_for_previous` until this kernel has ended.
HD void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has ended. Before this call, do not access memory that an earlier kernel reads or writes.
HD void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace robocache

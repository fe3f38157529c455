// The atomics that headers use, for host code, which runs in one thread.
#pragma once

#if !defined(__CUDACC__)
namespace robocache {

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}

template <class T>
T atomicMax(T* at, T value) {
  const T before = *at;
  if (before < value) *at = value;
  return before;
}

template <class T>
T atomicOr(T* at, T value) {
  const T before = *at;
  *at |= value;
  return before;
}

}  // namespace robocache
#endif

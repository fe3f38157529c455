// Groups of elements that are loaded and stored together, of up to 16 bytes, and copies to shared memory.
#pragma once
#include "common/number.cuh"

namespace robocache {

template <int BYTES>
struct WordOf;
#if defined(__CUDACC__)
template <>
struct WordOf<16> {
  typedef uint4 type;
};
template <>
struct WordOf<8> {
  typedef uint2 type;
};
template <>
struct WordOf<4> {
  typedef unsigned int type;
};
template <>
struct WordOf<2> {
  typedef unsigned short type;
};
template <>
struct WordOf<1> {
  typedef unsigned char type;
};
#else
template <int BYTES>
struct WordOf {
  struct alignas(BYTES) type {
    uint8 bytes[BYTES];
  };
};
#endif

// N elements of T in one or a few registers; call `unpack` where they are used.
template <class T, int N>
using Word = typename WordOf<sizeof(T) * N>::type;

template <class T, int N>
struct Pack {
  T at[N];
};

template <class T, int N>
HD Pack<T, N> unpack(const Word<T, N>& word) {
  Pack<T, N> pack;
  memcpy(&pack, &word, sizeof pack);
  return pack;
}

// Hides the computation of an address from the compiler, which would otherwise repeat it at every use.
template <class T>
HD void hold(T*& address) {
#if defined(__CUDACC__)
  asm volatile("" : "+l"(address));
#else
  (void)address;
#endif
}

// Loads from device memory that no thread writes while the kernel runs.
template <class W>
HD W load_constant(const W* from) {
#if defined(__CUDACC__)
  return __ldg(from);
#else
  return *from;
#endif
}

// Stores a result. The kernel does not read it again, so the caches evict it first.
template <class T, int N>
HD void store(T* to, const Pack<T, N>& pack) {
  Word<T, N> word;
  memcpy(&word, &pack, sizeof pack);
#if defined(__CUDACC__)
  __stcs((Word<T, N>*)to, word);
#else
  *(Word<T, N>*)to = word;
#endif
}

// Copies 16 bytes from device to shared memory without registers; both addresses must be aligned. `await_copies` waits
// for the copy.
HD void copy_async(void* to, const void* from) {
#if defined(__CUDACC__)
  uint32 address = (uint32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
#else
  memcpy(to, from, 16);
#endif
}

HD void await_copies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copies bytes from device to shared memory with all threads, and returns the start of the copy. `to` has room for 15
// more bytes: the copy has the same address modulo 16 as `from`, so that both are read with the same words.
template <bool WHOLE>
HD char* stage(char* to, const char* from, int bytes, int thread, int threads) {
  if constexpr (WHOLE) {  // the bytes are whole aligned words
    ROLLED
    for (int i = thread * 16; i < bytes; i += threads * 16) copy_async(to + i, from + i);
    return to;
  }
  int skew = (int)((unsigned long long)from & 15);
  int head = skew ? 16 - skew : 0;
  if (head > bytes) head = bytes;
  int body = (bytes - head) >> 4, tail = (bytes - head) & 15;
  char* begin = to + skew;
  ROLLED
  for (int i = thread; i < body; i += threads) copy_async(begin + head + i * 16, from + head + i * 16);
  ROLLED
  for (int i = thread; i < head; i += threads) begin[i] = from[i];
  ROLLED
  for (int i = thread; i < tail; i += threads) begin[bytes - tail + i] = from[bytes - tail + i];
  return begin;
}

}  // namespace robocache

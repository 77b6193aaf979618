"""The coders of `ncclz` on a GPU, in CUDA through CuPy: what they do in a second.

Prints JSON: bytes of int32 codes a second, each way. The table coder is the same as in NumPy: rANS
with 12-bit tables, a chunk of 65,536 codes for a block of 512 threads, 32 lanes to a warp. Each
round trip is checked. On the whole GPU, and in no more blocks than NCCL takes for a collective; the
latter are the figures of `Speeds` for a GPU.
"""

from __future__ import annotations

import json
import sys

import numpy as np

ITEMS, CHUNK, THREADS = 1 << 26, 65536, 512
# By default NCCL gives a collective at most 32 blocks of 512 threads (NCCL_MAX_CTAS,
# NCCL_NTHREADS), and what runs inside its primitives has no more.
CHANNELS = 32
SOURCE = r"""
#define BITS 12
#define TOTAL 4096
#define LOW (1u << 15)
#define WARPS 16
#define THREADS (32 * WARPS)
#define WARP_ITEMS 4096
#define CHUNK (WARPS * WARP_ITEMS)
typedef unsigned int u32; typedef unsigned short u16; typedef unsigned char u8;

extern "C" __global__ void encode(const int* in, u16* freq_out, int* least_out, u32* states,
                                  u16* words, u32* counts, int chunks) {
  __shared__ u32 hist[256], start[256], freq[256]; __shared__ int least_s;
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) { __syncthreads();
  const int* mine = in + (size_t)chunk * CHUNK;
  int t = threadIdx.x, warp = t >> 5, lane = t & 31, least = 0x7fffffff;
  if (t == 0) least_s = 0x7fffffff;
  if (t < 256) hist[t] = 0;
  __syncthreads();
  for (int i = t; i < CHUNK; i += THREADS) least = min(least, mine[i]);
  for (int d = 16; d; d >>= 1) least = min(least, __shfl_xor_sync(~0u, least, d));
  if (lane == 0) atomicMin(&least_s, least);
  __syncthreads(); least = least_s;
  for (int i = t; i < CHUNK; i += THREADS) atomicAdd(&hist[min(mine[i] - least, 255)], 1u);
  __syncthreads();
  if (t < 256) {
    u32 f = hist[t] / (CHUNK / TOTAL);
    freq[t] = (hist[t] && !f) ? 1 : f;
  }
  __syncthreads();
  if (t == 0) {
    int sum = 0, top = 0;
    for (int s = 0; s < 256; s++) { sum += freq[s]; if (freq[s] > freq[top]) top = s; }
    freq[top] += TOTAL - sum;
    u32 at = 0; for (int s = 0; s < 256; s++) { start[s] = at; at += freq[s]; }
    least_out[chunk] = least;
  }
  __syncthreads();
  if (t < 256) freq_out[chunk * 256 + t] = (u16)freq[t];
  size_t stream = (size_t)chunk * WARPS + warp;
  const int* part = mine + warp * WARP_ITEMS;
  u16* out = words + (stream + 1) * WARP_ITEMS;
  u32 x = LOW, n = 0;
  for (int i = WARP_ITEMS - 32; i >= 0; i -= 32) {
    int s = min(part[i + lane] - least, 255);
    u32 f = freq[s], full = x >= (f << (31 - BITS)), mask = __ballot_sync(~0u, full);
    if (full) { out[-(int)(n + 1 + __popc(mask & ~((2u << lane) - 1)))] = (u16)x; x >>= 16; }
    n += __popc(mask);
    x = (x / f << BITS) + x % f + start[s];
  }
  states[stream * 32 + lane] = x;
  if (lane == 0) counts[stream] = n;
  }
}

extern "C" __global__ void decode(int* back, const u16* freq_in, const int* least_in,
                                  const u32* states, const u16* words, const u32* counts,
                                  int chunks) {
  __shared__ u32 table[TOTAL]; __shared__ u32 freq[256], start[256];
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) { __syncthreads();
  int t = threadIdx.x, warp = t >> 5, lane = t & 31, least = least_in[chunk];
  if (t < 256) freq[t] = freq_in[chunk * 256 + t];
  __syncthreads();
  if (t == 0) { u32 at = 0; for (int s = 0; s < 256; s++) { start[s] = at; at += freq[s]; } }
  __syncthreads();
  // symbol (8 bits), frequency - 1 (12 bits), place in the slot (12 bits)
  for (int s = warp; s < 256; s += WARPS)
    for (u32 k = lane; k < freq[s]; k += 32)
      table[start[s] + k] = (u32)s << 24 | (freq[s] - 1) << 12 | k;
  __syncthreads();
  size_t stream = (size_t)chunk * WARPS + warp;
  const u16* src = words + (stream + 1) * WARP_ITEMS - counts[stream];
  int* out = back + (size_t)chunk * CHUNK + warp * WARP_ITEMS;
  u32 x = states[stream * 32 + lane];
  for (int i = 0; i < WARP_ITEMS; i += 32) {
    u32 e = table[x & (TOTAL - 1)];
    out[i + lane] = (int)(e >> 24) + least;
    x = ((e >> 12 & 4095) + 1) * (x >> BITS) + (e & 4095);
    u32 low = x < LOW, mask = __ballot_sync(~0u, low);
    if (low) x = x << 16 | src[__popc(mask & ((1u << lane) - 1))];
    src += __popc(mask);
  }
  }
}

extern "C" __global__ void pack(const int* in, u32* words, int* least_out, int* width_out,
                                int chunks) {
  __shared__ int least_s, most_s;
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) { __syncthreads();
  const int* mine = in + (size_t)chunk * CHUNK;
  int t = threadIdx.x, least = 0x7fffffff, most = 0x80000000;
  if (t == 0) { least_s = least; most_s = most; }
  __syncthreads();
  for (int i = t; i < CHUNK; i += THREADS) {
    least = min(least, mine[i]); most = max(most, mine[i]);
  }
  for (int d = 16; d; d >>= 1) {
    least = min(least, __shfl_xor_sync(~0u, least, d));
    most = max(most, __shfl_xor_sync(~0u, most, d));
  }
  if ((t & 31) == 0) { atomicMin(&least_s, least); atomicMax(&most_s, most); }
  __syncthreads(); least = least_s;
  int w = 32 - __clz(most_s - least);
  if (t == 0) { least_out[chunk] = least; width_out[chunk] = w; }
  u32* out = words + (size_t)chunk * CHUNK;
  for (int c = t; c < CHUNK / 32; c += THREADS) {   // column c: the values c, c + 1024, ...
    unsigned long long held = 0; int bits = 0, row = 0;
    for (int r = 0; r < 32; r++) {
      held |= (unsigned long long)(u32)(mine[r * (CHUNK / 32) + c] - least) << bits; bits += w;
      if (bits >= 32) { out[row++ * (CHUNK / 32) + c] = (u32)held; held >>= 32; bits -= 32; }
    }
  }
  }
}

extern "C" __global__ void unpack(int* back, const u32* words, const int* least_in,
                                  const int* width_in, int chunks) {
  for (int chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
  int least = least_in[chunk], w = width_in[chunk];
  const u32* in = words + (size_t)chunk * CHUNK;
  int* out = back + (size_t)chunk * CHUNK;
  u32 mask = w == 32 ? ~0u : (1u << w) - 1;
  for (int c = threadIdx.x; c < CHUNK / 32; c += THREADS) {
    unsigned long long held = 0; int bits = 0, row = 0;
    for (int r = 0; r < 32; r++) {
      if (bits < w) {
        held |= (unsigned long long)in[row++ * (CHUNK / 32) + c] << bits; bits += 32;
      }
      out[r * (CHUNK / 32) + c] = (int)((u32)held & mask) + least; held >>= w; bits -= w;
    }
  }
  }
}
"""


def main() -> None:
    """Measure each coder on codes of deviation 1 and 4."""
    try:
        import cupy as cp
    except ImportError:
        sys.exit("this benchmark needs an NVIDIA GPU and CuPy: pip install cupy-cuda13x")
    module = cp.RawModule(code=SOURCE)
    blocks = ITEMS // CHUNK
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    found: dict[str, object] = {"device": name, "items": ITEMS, "chunk": CHUNK}

    def rate_Bps(call: object) -> float:
        for _ in range(3):
            call()  # type: ignore[operator]
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        for _ in range(20):
            call()  # type: ignore[operator]
        end.record()
        end.synchronize()
        return 20 * 4 * ITEMS / (cp.cuda.get_elapsed_time(begin, end) / 1e3)

    def launch(kernel: str, *args: object) -> object:
        function = module.get_function(kernel)
        grid = CHANNELS if channels else blocks
        return lambda: function((grid,), (THREADS,), (*args, np.int32(blocks)))

    values = cp.random.standard_normal(ITEMS, dtype=cp.float32)
    codes = cp.empty(ITEMS, cp.int32)
    floats, back = cp.empty(ITEMS, cp.float32), cp.empty(ITEMS, cp.int32)
    quantise = cp.ElementwiseKernel("float32 x, float64 s", "int32 q", "q = rint(x * s)", "quant")
    dequantise = cp.ElementwiseKernel("int32 q, float64 s", "float32 x", "x = q * s", "dequant")
    for deviation, channels in ((1.0, False), (4.0, False), (1.0, True), (4.0, True)):
        rates = {
            "quantise": rate_Bps(lambda s=deviation: quantise(values, s, codes)),
            "dequantise": rate_Bps(lambda s=deviation: dequantise(codes, 1 / s, floats)),
            "raw": rate_Bps(lambda: cp.copyto(back, codes)),
        }
        freq = cp.empty(blocks * 256, cp.uint16)
        least, width = cp.empty(blocks, cp.int32), cp.empty(blocks, cp.int32)
        states, counts = cp.empty(blocks * THREADS, cp.uint32), cp.empty(blocks * 16, cp.uint32)
        words, packed = cp.empty(ITEMS, cp.uint16), cp.empty(ITEMS, cp.uint32)
        rates["table_encode"] = rate_Bps(
            launch("encode", codes, freq, least, states, words, counts)
        )
        back.fill(0)
        rates["table_decode"] = rate_Bps(launch("decode", back, freq, least, states, words, counts))
        assert bool((back == codes).all()), "the table coder lost something"
        bits = (int(counts.sum()) * 16 + 32 * states.size) / ITEMS
        rates["pack_encode"] = rate_Bps(launch("pack", codes, packed, least, width))
        back.fill(0)
        rates["pack_decode"] = rate_Bps(launch("unpack", back, packed, least, width))
        assert bool((back == codes).all()), "bit packing lost something"
        rounded = {key: float(f"{value:.3g}") for key, value in rates.items()}
        where = f"{CHANNELS} blocks" if channels else "whole GPU"
        found[f"deviation {deviation:g}, {where}"] = {"Bps": rounded, "table_bits": round(bits, 3)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

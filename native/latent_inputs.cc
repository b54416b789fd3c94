#include "latent_inputs.h"

#include <algorithm>
#include <vector>

#include "rows.h"

namespace octavo {
namespace {

// Rotates a head's values; `to` is not `from`.
template <class T>
void rotate_head(const Rotation& rotation, int64_t token, const T* from, T* to) {
    const int64_t size = rotation.size, half = size / 2;
    const T* cos = static_cast<const T*>(rotation.cos) + token * size;
    const T* sin = static_cast<const T*>(rotation.sin) + token * size;
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = std::min<int64_t>(kLanes, half - i);
        T first[kLanes] = {}, second[kLanes] = {};
        for (int64_t j = 0; j < count; ++j) {
            first[j] = from[rotation.is_interleaved ? 2 * (i + j) : i + j];
            second[j] = from[rotation.is_interleaved ? 2 * (i + j) + 1 : i + j + half];
        }
        const Lanes a = load(first), b = load(second);
        store_some(to + i, fma(b, load_some(sin + i, count), a * load_some(cos + i, count)), count);
        store_some(to + i + half, fma(a, load_some(sin + i + half, count), b * load_some(cos + i + half, count)), count);
    }
}

template <class T>
void rotate_token(const RotateHeads& rotate, int64_t token) {
    const int64_t size = rotate.rotation.size, rest = rotate.head_dim - size;
    for (int64_t head = 0; head < rotate.num_heads; ++head) {
        const T* from = static_cast<const T*>(rotate.x) + token * rotate.x_stride + head * rotate.x_head;
        T* to = static_cast<T*>(rotate.to) + token * rotate.to_stride + head * rotate.to_head;
        rotate_head(rotate.rotation, token, from + (rotate.is_last ? rest : 0), to);
        std::memcpy(to + size, from + (rotate.is_last ? 0 : size), rest * sizeof(T));
    }
}

template <class T, class C>
void store_vector_of(const StoreLatent& store, const T* vector, int64_t size, int64_t block, int64_t place) {
    unsigned char* to = store.cache + block * store.block_stride + place * store.row_bytes;
    if constexpr (kIsQuantized<C>) {
        const CacheFactors& factors = store.factors;
        float& factor = factors.first[block * factors.block + place * factors.token];
        if (!factors.are_given) factor = vector_scale<C>(vector, size);
        round_vector(vector, size, factor, reinterpret_cast<C*>(to), 1);
    } else {
        std::memcpy(to, vector, size * sizeof(T));
    }
}

template <class T, class C>
void store_token(const StoreLatent& store, int64_t token) {
    const int64_t slot = store.slot_mapping[token], size = store.row_bytes / (int64_t)sizeof(C);
    if (slot < 0) return;
    const T* vector = reinterpret_cast<const T*>(store.latent + token * store.row_stride);
    thread_local std::vector<T> finished;
    if (store.norm != nullptr) {
        finished.resize(size);
        const int64_t rank = size - store.rotation.size;
        by_type(store.norm_type, [&](auto weight) {
            using W = decltype(weight);
            rms_norm_row(vector, finished.data(), static_cast<const W*>(store.norm), rank, store.eps);
        });
        rotate_head(store.rotation, token, vector + rank, finished.data() + rank);
        vector = finished.data();
    }
    store_vector_of<T, C>(store, vector, size, slot / store.block_size, slot % store.block_size);
}

}  // namespace

void RotateHeads::run(int64_t chunk) const {
    by_type(type, [&](auto value) {
        for (int64_t token = chunk * 4; token < std::min(chunk * 4 + 4, num_tokens); ++token)
            rotate_token<decltype(value)>(*this, token);
    });
}

void StoreLatent::run(int64_t chunk) const {
    by_type(type, [&](auto value) {
        by_cache_type<decltype(value)>(cache_type, [&](auto cached) {
            for (int64_t token = chunk * kTokens; token < std::min(chunk * kTokens + kTokens, num_tokens); ++token)
                store_token<decltype(value), decltype(cached)>(*this, token);
        });
    });
}

}  // namespace octavo

#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace octet {

// Zeroed memory, aligned to cache lines, that takes no pages before it is written.
template <class T>
class Buffer {
 public:
    explicit Buffer(size_t count) : whole_(std::calloc(count * sizeof(T) + 128, 1)) {
        if (!whole_) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(whole_) + 63) / 64 * 64);
    }
    ~Buffer() { std::free(whole_); }
    Buffer(const Buffer&) = delete;
    T* data() const { return data_; }

 private:
    void* whole_;
    T* data_;
};

}  // namespace octet

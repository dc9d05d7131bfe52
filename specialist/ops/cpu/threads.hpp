// A few threads that share the tasks of one job after another. During a step they spin, because jobs follow each other
// within microseconds; between steps they sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octet {

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Threads {
 public:
    explicit Threads(int count) {
        for (int i = 1; i < count; i++) workers_.emplace_back([this, i] { work(i); });
    }

    ~Threads() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            awake_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    int count() const { return int(workers_.size()) + 1; }

    // Workers spin until sleep().
    void wake() {
        if (workers_.empty()) return;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            awake_ = true;
        }
        wake_.notify_all();
    }

    void sleep() { awake_ = false; }

    // Calls body(task, thread) once for each task in [0, tasks), and returns when all have returned.
    template <class Body>
    void run(int tasks, Body&& body) {
        if (workers_.empty() || tasks <= 1) {
            for (int task = 0; task < tasks; task++) body(task, 0);
            return;
        }
        tasks_ = tasks;
        context_ = &body;
        call_ = [](void* context, int task, int thread) { (*static_cast<std::decay_t<Body>*>(context))(task, thread); };
        next_.store(0, std::memory_order_relaxed);
        busy_.store(int(workers_.size()), std::memory_order_relaxed);
        job_.fetch_add(1, std::memory_order_release);
        take_tasks(0);
        for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; spins++) relax(spins);
    }

 private:
    // Spins for a few microseconds, then yields the core: the awaited thread may need it.
    static void relax(int spins) {
        if (spins < 64) pause_briefly();
        else std::this_thread::yield();
    }

    void take_tasks(int thread) {
        for (int task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) call_(context_, task, thread);
    }

    void work(int thread) {
        uint64_t done = 0;
        for (int spins = 0;; spins++) {
            if (job_.load(std::memory_order_acquire) != done) {
                done++;
                take_tasks(thread);
                busy_.fetch_sub(1, std::memory_order_release);
                spins = 0;
            } else if (!awake_.load(std::memory_order_relaxed)) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [this] { return awake_.load(); });
            } else if (stopping_) {
                return;
            } else {
                relax(spins);
            }
        }
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<bool> awake_{false};
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<uint64_t> job_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> busy_{0};
    int tasks_ = 0;
    void* context_ = nullptr;
    void (*call_)(void*, int, int) = nullptr;
};

}  // namespace octet

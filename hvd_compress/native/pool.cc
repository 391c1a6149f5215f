#include "pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvd_compress {
namespace {

// While it lives, arithmetic rounds to nearest and keeps denormals, whatever the program has set for its thread.
class PlainArithmetic {
public:
#if defined(__x86_64__)
    PlainArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
    ~PlainArithmetic() { _mm_setcsr(before_); }

private:
    unsigned before_;
#endif
};

class Pool {
public:
    explicit Pool(std::size_t count) {
        for (std::size_t i = 1; i < count; ++i) workers_.emplace_back([this] { serve(); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    std::size_t size() const { return workers_.size() + 1; }

    void run(std::size_t parts, const std::function<void(std::size_t)>& work) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            parts_ = parts;
            next_.store(0);
            busy_ = workers_.size();
            failure_ = nullptr;
            ++round_;
        }
        wake_.notify_all();
        take(work, parts);
        std::unique_lock<std::mutex> lock(mutex_);
        idle_.wait(lock, [this] { return busy_ == 0; });
        if (failure_) std::rethrow_exception(failure_);
    }

private:
    void take(const std::function<void(std::size_t)>& work, std::size_t parts) {
        const PlainArithmetic plain;
        try {
            for (std::size_t part = next_.fetch_add(1); part < parts; part = next_.fetch_add(1)) work(part);
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex_);
            failure_ = std::current_exception();
        }
    }

    void serve() {
        std::size_t seen = 0;
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [&] { return stop_ || round_ != seen; });
            if (stop_) return;
            seen = round_;
            const auto* work = work_;
            const std::size_t parts = parts_;
            lock.unlock();
            take(*work, parts);
            lock.lock();
            if (--busy_ == 0) idle_.notify_one();
        }
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    const std::function<void(std::size_t)>* work_ = nullptr;
    std::size_t parts_ = 0, busy_ = 0, round_ = 0;
    std::atomic<std::size_t> next_{0};
    std::exception_ptr failure_;
    bool stop_ = false;
};

std::atomic<std::size_t> wanted{1};
std::mutex turn;
// Never destroyed: at the end of a process its threads may be gone already.
Pool* pool = nullptr;
// A child of fork has none of its parent's threads.
pid_t owner = 0;

}  // namespace

std::size_t threads() { return wanted; }

void set_threads(std::size_t count) { wanted = count < 1 ? 1 : count; }

void parallel(std::size_t parts, const std::function<void(std::size_t)>& work) {
    std::unique_lock<std::mutex> lock(turn, std::defer_lock);
    const std::size_t count = wanted;
    // Another thread of the program that has the pool keeps it: this one then does its work alone.
    if (parts < 2 || count < 2 || !lock.try_lock()) {
        const PlainArithmetic plain;
        for (std::size_t part = 0; part < parts; ++part) work(part);
        return;
    }
    if (pool == nullptr || owner != getpid()) {
        pool = new Pool(count);
        owner = getpid();
    } else if (pool->size() != count) {
        delete pool;
        pool = new Pool(count);
    }
    pool->run(parts, work);
}

}  // namespace hvd_compress

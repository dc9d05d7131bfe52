// The next token of one row from its logits, as in `ops/reference/sampling.py`, in a few passes over the vocabulary.
// Everything is element-wise or in a fixed order, so that a draw is the same to the bit with any compiler.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "vector.hpp"

namespace octet {

// Must match `library.py`.
struct Draw {
    const float* logits;      // [vocab]
    const uint8_t* allowed;   // one bit per token, the lowest first; null: every token
    const int64_t* tokens;    // [num_tokens], prompt and generated; inside the vocabulary
    const int64_t* bias_ids;  // [num_bias], distinct
    const float* bias;        // [num_bias]
    const int64_t* banned;    // [num_banned]
    double temperature;       // 0: the lowest id of the largest logit
    double top_p, min_p;
    double uniform;           // in [0, 1)
    float repetition, presence, frequency;
    int32_t vocab, num_tokens, num_prompt, num_bias, num_banned, top_k;
    float raw, peak;  // out: the largest logit before and after adjustment; NaN if there is one
    int32_t token;    // out: valid if both are finite
};

constexpr double COLDEST = 1e-300;  // its inverse is finite
constexpr int STRETCH = 256;        // tokens whose weights are summed together, in 8 lanes
constexpr int FEW = 64;

// For x <= 0, to 2 ulp; 0 if the result would not be a normal number.
inline double exp_of(double x) {
    constexpr double INV_LN2 = 1.4426950408889634, LN2_HIGH = 0x1.62e42fefap-1, LN2_LOW = 0x1.cf79abc9e3b39p-41;
    constexpr double ROUND = 0x1.8p52;
    const double at = x > -708.0 ? x : -708.0;
    const double shifted = at * INV_LN2 + ROUND;
    const double k = shifted - ROUND;
    const double r = (at - k * LN2_HIGH) - k * LN2_LOW;
    double p = 1.0 / 6227020800.0;
    for (double inverse : {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                           1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0})
        p = p * r + inverse;
    int64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;  // the low bits of `shifted` are k
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return x > -708.0 ? p * power : 0.0;
}

// NaN if there is one.
inline float largest(const float* x, int count) {
    constexpr float NEVER = -std::numeric_limits<float>::infinity();
    f32x16 best = each<f32x16>([&](int) { return f32x16::Register{} + NEVER; });
    i32x16 odd{};
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const f32x16 v = load<f32x16>(x + i);
        best = each<f32x16>([&](int p) { return v.part[p] > best.part[p] ? v.part[p] : best.part[p]; });
        odd = each<i32x16>([&](int p) { return odd.part[p] | (v.part[p] != v.part[p]); });
    }
    float lanes[LANES];
    int32_t flags[LANES];
    store(lanes, best);
    store(flags, odd);
    float most = *std::max_element(lanes, lanes + LANES);
    bool broken = std::any_of(flags, flags + LANES, [](int32_t flag) { return flag != 0; });
    for (; i < count; i++) {
        most = std::max(most, x[i]);
        broken |= x[i] != x[i];
    }
    return broken ? std::numeric_limits<float>::quiet_NaN() : most;
}

// Tokens whose bit is 0 become -inf.
inline void strike_out(float* x, const uint8_t* allowed, int count) {
    constexpr float NEVER = -std::numeric_limits<float>::infinity();
    int32_t places[LANES];
    for (int lane = 0; lane < LANES; lane++) places[lane] = 1 << lane;
    const i32x16 place = load<i32x16>(places);
    int i = 0;
    for (; i + LANES <= count; i += LANES) {
        const int32_t word = allowed[i / 8] | allowed[i / 8 + 1] << 8;
        const f32x16 v = load<f32x16>(x + i);
        store(x + i, each<f32x16>([&](int p) {
                  return (place.part[p] & word) != 0 ? v.part[p] : f32x16::Register{} + NEVER;
              }));
    }
    for (; i < count; i++)
        if (!(allowed[i / 8] >> (i % 8) & 1)) x[i] = NEVER;
}

// The sum of all weights of at least `least`, in 8 lanes.
inline double sum_of(const double* w, int count, double least) {
    double lanes[8] = {};
    int i = 0;
    for (; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; lane++) lanes[lane] += w[i + lane] >= least ? w[i + lane] : 0.0;
    for (; i < count; i++) lanes[0] += w[i] >= least ? w[i] : 0.0;
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// One per thread; its memory is reused for every draw.
class Sampler {
 public:
    void draw(Draw& d) {
        d.raw = d.peak = largest(d.logits, d.vocab);
        const float* logits = d.logits;
        if (d.allowed || d.num_bias || d.num_banned || penalised(d)) {
            logits = adjusted(d);
            d.peak = largest(logits, d.vocab);
        }
        d.token = 0;
        if (!std::isfinite(d.raw) || !std::isfinite(d.peak)) return;
        d.token = d.temperature == 0.0 ? int32_t(std::find(logits, logits + d.vocab, d.peak) - logits)
                                       : drawn(d, logits);
    }

 private:
    struct One {
        float logit;
        int32_t id;
        double weight;
    };

    static bool penalised(const Draw& d) { return d.repetition != 1.0f || d.presence != 0.0f || d.frequency != 0.0f; }

    const float* adjusted(const Draw& d) {
        constexpr float NEVER = -std::numeric_limits<float>::infinity();
        scores_.assign(d.logits, d.logits + d.vocab);
        if (d.allowed) strike_out(scores_.data(), d.allowed, d.vocab);
        for (int i = 0; i < d.num_bias; i++) scores_[d.bias_ids[i]] += d.bias[i];
        if (d.repetition != 1.0f)
            each_of(d, 0, [&](int64_t id, int) {
                float& one = scores_[id];
                one = one > 0.0f ? one / d.repetition : one * d.repetition;
            });
        if (d.presence != 0.0f || d.frequency != 0.0f)
            each_of(d, d.num_prompt, [&](int64_t id, int count) {
                scores_[id] -= d.frequency * float(count) + d.presence;
            });
        for (int i = 0; i < d.num_banned; i++) scores_[d.banned[i]] = NEVER;
        return scores_.data();
    }

    // Calls body(token, count) once for each distinct token from `start` on.
    template <class Body>
    void each_of(const Draw& d, int start, Body&& body) {
        counts_.resize(std::max(counts_.size(), size_t(d.vocab)));
        for (int i = start; i < d.num_tokens; i++) counts_[d.tokens[i]]++;
        for (int i = start; i < d.num_tokens; i++)
            if (int& count = counts_[d.tokens[i]]) {
                body(d.tokens[i], count);
                count = 0;
            }
    }

    int32_t drawn(const Draw& d, const float* logits) {
        const double inverse = 1.0 / std::max(d.temperature, COLDEST);
        if (d.top_k == 0 || d.top_k >= d.vocab) {
            const double total = weigh(logits, d.vocab, d.peak, inverse);
            if (d.top_p >= 1.0 && d.min_p <= 0.0) return passed_of_all(d, total);
            heavy(d, logits, total);
            return filtered(d, total);
        }
        leaders(d, logits);
        double total = 0.0;
        for (One& one : found_) total += one.weight = exp_of((double(one.logit) - d.peak) * inverse);
        return filtered(d, total);
    }

    // Fills weights_, and sums_ with the sum of each stretch; returns the total.
    double weigh(const float* logits, int vocab, double peak, double inverse) {
        weights_.resize(vocab);
        sums_.clear();
        double total = 0.0;
        for (int from = 0; from < vocab; from += STRETCH) {
            const int stop = std::min(vocab, from + STRETCH);
            double* w = weights_.data();
            for (int i = from; i < stop; i++) w[i] = exp_of((double(logits[i]) - peak) * inverse);
            sums_.push_back(sum_of(w + from, stop - from, 0.0));
            total += sums_.back();
        }
        return total;
    }

    int32_t passed_of_all(const Draw& d, double total) const {
        const double target = d.uniform * total;
        double running = 0.0;
        int last = 0;
        for (size_t s = 0; s < sums_.size(); s++) {
            if (sums_[s] == 0.0) continue;
            if (running + sums_[s] <= target) {
                running += sums_[s];
                last = int(s);
                continue;
            }
            return passed(int(s), target - running);
        }
        return passed(last, std::numeric_limits<double>::infinity());
    }

    // The token of a stretch where the running sum passes the target; its last with a weight if rounding hides that.
    int32_t passed(int stretch, double target) const {
        double running = 0.0;
        int32_t last = 0;
        const int stop = std::min(int(weights_.size()), (stretch + 1) * STRETCH);
        for (int i = stretch * STRETCH; i < stop; i++) {
            if (weights_[i] == 0.0) continue;
            last = i;
            if ((running += weights_[i]) > target) break;
        }
        return last;
    }

    // found_, by ascending id: the top_k largest, and ties with the last of them.
    void leaders(const Draw& d, const float* logits) {
        float least = -std::numeric_limits<float>::infinity();
        for (float span : {2.0f, 8.0f, 32.0f, 128.0f}) {
            int count = 0;
            for (int i = 0; i < d.vocab; i++) count += logits[i] >= d.peak - span;
            if (count >= d.top_k) {
                least = d.peak - span;
                break;
            }
        }
        gather(logits, logits, d.vocab, least);
        order_.clear();
        for (const One& one : found_) order_.push_back(one.logit);
        std::nth_element(order_.begin(), order_.begin() + (d.top_k - 1), order_.end(), std::greater<float>());
        least = order_[d.top_k - 1];
        drop([&](const One& one) { return one.logit < least; });
    }

    // found_, by ascending id: all tokens that the filters may keep; the others weigh too little.
    void heavy(const Draw& d, const float* logits, double total) {
        double least = d.min_p;
        if (d.top_p < 1.0) {
            const double enough = d.top_p * total * (1.0 + 1e-9), all = total * (1.0 - d.top_p) / 2 / d.vocab;
            for (least = 0.125; least > all && sum_of(weights_.data(), d.vocab, least) < enough;) least /= 8.0;
        }
        gather(weights_.data(), logits, d.vocab, least);
        for (One& one : found_) one.weight = weights_[one.id];
    }

    template <class Value>
    void gather(const Value* values, const float* logits, int vocab, Value least) {
        found_.clear();
        for (int from = 0; from < vocab; from += LANES) {
            const int stop = std::min(vocab, from + LANES);
            int any = 0;
            for (int i = from; i < stop; i++) any |= values[i] >= least;
            for (int i = from; any && i < stop; i++)
                if (values[i] >= least) found_.push_back({logits[i], i, 0.0});
        }
    }

    template <class Condition>
    void drop(Condition&& condition) {
        found_.erase(std::remove_if(found_.begin(), found_.end(), condition), found_.end());
    }

    int32_t filtered(const Draw& d, double total) {
        if (d.top_p < 1.0) keep_mass(d.top_p * total);
        if (d.min_p > 0.0) drop([&](const One& one) { return one.weight < d.min_p; });
        double sum = 0.0, running = 0.0;
        for (const One& one : found_) sum += one.weight;
        const double target = d.uniform * sum;
        int32_t last = 0;
        for (const One& one : found_) {
            if (one.weight == 0.0) continue;
            last = one.id;
            if ((running += one.weight) > target) break;
        }
        return last;
    }

    // Keeps the fewest most likely of found_ that reach the mass, at least one; of equals the lower ids.
    void keep_mass(double mass) {
        const auto before = [](const One& a, const One& b) {
            return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
        };
        size_t sorted = 0, kept = 0;
        double running = 0.0;
        for (size_t some = FEW; kept == sorted && sorted < found_.size(); some *= 4) {
            const size_t stop = std::min(found_.size(), some);
            if (stop < found_.size())
                std::nth_element(found_.begin() + sorted, found_.begin() + stop, found_.end(), before);
            std::sort(found_.begin() + sorted, found_.begin() + stop, before);
            for (sorted = stop; kept < sorted && (kept == 0 || running < mass); kept++) running += found_[kept].weight;
        }
        found_.resize(kept);
        std::sort(found_.begin(), found_.end(), [](const One& a, const One& b) { return a.id < b.id; });
    }

    std::vector<float> scores_, order_;
    std::vector<double> weights_, sums_;
    std::vector<int> counts_;
    std::vector<One> found_;
};

}  // namespace octet

#include "sampler.hpp"

using namespace octet;

extern "C" {

// Runs each draw on the calling thread.
void octet_sample(Draw* draws, int count) {
    static thread_local Sampler sampler;
    for (int i = 0; i < count; i++) sampler.draw(draws[i]);
}
}

#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/linear_choice.hpp"
#include "backend/cuda/memory.hpp"

namespace baton::backend::cuda {

/// Parts of k whose sums are added in order where results must not depend on m: fixed by the matrix alone. Only clusters add parts for
/// few rows; a device without them has one.
[[nodiscard]] uint32_t deterministic_splits(uint32_t n, uint32_t k, bool clusters);

/// Adds the tensor-core tiles worth measuring for a product; `fixed`: those whose results do not depend on m.
void add_tiles(const Product& product, const TileLimits& limits, uint32_t multiprocessors, bool fixed, std::vector<Choice>& found);

/// Linear, and what its test and bench look into. One thread.
class LinearImpl final : public Linear {
  public:
    static Expected<std::unique_ptr<LinearImpl>> make(const LinearOptions& options);
    Expected<void> tune(const Matrix& matrix, cudaStream_t stream) override;
    cudaError_t run(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out) override;
    [[nodiscard]] uint32_t alternatives(const Matrix& matrix, uint32_t m) const override;
    void choose(const Matrix& matrix, uint32_t m, uint32_t i) override;
    [[nodiscard]] uint32_t family(const Matrix& matrix, uint32_t m, uint32_t i) const override;
    [[nodiscard]] bool late(const Matrix& matrix, uint32_t m, uint32_t i) const override;
    Expected<void> keep() override { return save(); }
    [[nodiscard]] size_t bytes() const override;
    [[nodiscard]] std::string choices() const override;

    /// Every way to compute the product at m, none measured.
    [[nodiscard]] std::vector<Choice> candidates(const Matrix& matrix, uint32_t m) const;
    /// Whether `choice` can run for the product: configuration, limits of the device, the library's check.
    [[nodiscard]] bool takes(const Matrix& matrix, uint32_t m, const Choice& choice) const;
    /// As run, by the given choice, which takes the product.
    cudaError_t run_as(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out, const Choice& choice);
    /// Device memory for intermediate rows of this matrix; before run_as, not while capturing.
    Expected<void> reserve(const Matrix& matrix);
    /// The choice that run would take at m.
    [[nodiscard]] const Choice& chosen(const Matrix& matrix, uint32_t m);
    [[nodiscard]] bool pdl() const { return pdl_; }
    /// Every candidate at m with its time, the quickest first; infinity for one that did not run. Waits for `stream`.
    Expected<std::vector<Choice>> measure_all(const Matrix& matrix, uint32_t m, cudaStream_t stream);
    /// Milliseconds the tuning took so far and how many measurements.
    [[nodiscard]] double tuned_ms() const { return tuned_ms_; }
    [[nodiscard]] uint32_t measured() const { return measured_; }

  private:
    /// What is known of one shape.
    struct Entry {
        ShapeKey key;
        std::array<Choice, kBuckets> by_bucket;
        std::array<bool, kBuckets> known = {};
        std::array<std::vector<Choice>, kBuckets> near;  // what was nearly as quick, the quickest first
        std::vector<uint8_t> checked;       // [rows_max + 1], for cuBLASLt: 0 unknown, 1 the bucket's algorithm, 2 `others`
        std::map<uint32_t, Choice> others;  // by m, where the bucket's algorithm does not do
    };
    /// Buffers of one tuning, see linear_tune.cpp.
    struct Bench;

    LinearImpl() = default;
    [[nodiscard]] ShapeKey key_of(const Matrix& matrix) const;
    [[nodiscard]] Product product_of(const Matrix& matrix, const void* x, uint32_t m, void* out) const;
    Entry& entry_of(const Matrix& matrix);
    [[nodiscard]] const Entry* find_entry(const Matrix& matrix) const;
    [[nodiscard]] bool valid(const Matrix& matrix) const;
    /// Alternative `i` at m, or what is chosen where there is no such; null where nothing is known.
    [[nodiscard]] const Choice* alternative(const Matrix& matrix, uint32_t m, uint32_t i) const;
    /// The largest m of a bucket within rows_max.
    [[nodiscard]] uint32_t rows_of(uint32_t bucket) const;
    /// Rows handled at once where rows of `width` elements are kept between two kernels.
    [[nodiscard]] uint32_t chunk_rows(uint32_t width) const;
    [[nodiscard]] Choice untuned(const Matrix& matrix, uint32_t m) const;
    void add_gemv(const Product& product, std::vector<Choice>& found) const;
    void add_direct(const Product& product, std::vector<Choice>& found) const;
    void add_ring(const Product& product, std::vector<Choice>& found) const;
    void add_slab(const Product& product, std::vector<Choice>& found) const;
    void add_held(const Product& product, std::vector<Choice>& found) const;
    void add_bulk(const Product& product, std::vector<Choice>& found) const;
    cudaError_t run_rows(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out, const Choice& choice);
    /// A candidate's time in a row of `links`, into `choice`; infinity where it does not run.
    Expected<void> screen(const Matrix& matrix, Bench& bench, uint32_t m, uint32_t links, Choice& choice);
    /// The same, more exactly, as a chain in a graph.
    Expected<void> measure(const Matrix& matrix, Bench& bench, uint32_t m, Choice& choice, float limit_us);
    Expected<std::vector<Choice>> measure_all(const Matrix& matrix, uint32_t m, Bench& bench);
    /// Where the kernel for many rows is a candidate: times the quickest again, in turns on a warm GPU, and puts the quickest first.
    Expected<void> settle(const Matrix& matrix, Bench& bench, uint32_t m, std::vector<Choice>& found);
    Expected<void> tune_bucket(const Matrix& matrix, Bench& bench, Entry& entry, uint32_t bucket);
    Expected<void> save();

    LinearOptions options_;
    CacheIdentity identity_;
    Choices cached_;  // what the file held, and what was measured since
    std::unique_ptr<Lt> lt_;
    TileLimits limits_;
    RingLimits ring_limits_;
    BulkLimits bulk_limits_;
    uint32_t slab_most_ = 0;  // bytes of shared memory, of a slab's block
    uint32_t held_most_ = 0;  // bytes of shared memory, of a held product's block
    uint32_t multiprocessors_ = 1;
    bool pdl_ = false;
    DeviceBuffer normed_;  // [chunk_rows(k), k]
    DeviceBuffer wide_;    // [chunk_rows(n), n] ahead of SwiGLU
    std::vector<std::unique_ptr<Entry>> entries_;
    double tuned_ms_ = 0;
    uint32_t measured_ = 0;
    std::string cache_error_;  // why the choices were not kept
};

}  // namespace baton::backend::cuda

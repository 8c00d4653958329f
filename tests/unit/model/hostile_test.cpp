// Model files are hostile input: cut or flipped anywhere they give an error or load, and never
// crash. The sanitizer builds run this too.
#include <gtest/gtest.h>

#include <random>

#include "baton/model/gguf_file.hpp"
#include "baton/model/model.hpp"
#include "baton/model/safetensors_file.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

struct Tally {
    int loaded = 0;
    int refused = 0;
};

/// Loads the file in every way there is.
void try_load(const std::string& path, Tally& tally) {
    const auto plan = load_plan(path);
    const auto info = inspect_model(path);
    (plan ? tally.loaded : tally.refused) += 1;
    if (!plan) {
        EXPECT_FALSE(plan.error().message.empty());
        return;
    }
    // What was accepted must be readable to the last byte.
    std::vector<float> row;
    const auto touch = [&](const tensor::TensorView& v) {
        if (!v) return;
        row.resize(v.shape[1]);
        for (size_t r = 0; r < v.shape[0]; ++r)
            tensor::dequantize_row(v.dtype, v.row(r), row.data(), row.size());
    };
    touch(plan->embedding);
    touch(plan->head);
    for (const auto& layer : plan->layers) {
        for (const auto& step : layer) {
            if (const auto* m = std::get_if<backend::MatMul>(&step)) {
                touch(m->weight);
                touch(m->bias);
            }
        }
    }
    if (info) {
        EXPECT_TRUE(info->tokenizer);
        EXPECT_FALSE(info->tokenizer->encode("hello", true, true).empty());
    }
}

class Hostile : public testing::Test {
  protected:
    /// Spoils `good` in one of its first `header` bytes, `rounds` times, and loads what comes out.
    void flip(const std::string& good, size_t header, const std::string& path, int rounds) {
        std::mt19937_64 random(11);
        Tally tally;
        test::write_all(path, good);
        std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
        const auto put = [&](size_t at, char byte) {
            file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
        };
        for (int i = 0; i < rounds; ++i) {
            const size_t at = random() % header;
            put(at, static_cast<char>(random()));
            SCOPED_TRACE(i);
            try_load(load_path_.empty() ? path : load_path_, tally);
            put(at, good[at]);
        }
        EXPECT_TRUE(file.good());
        EXPECT_GT(tally.refused, 0);
    }
    void cut(const std::string& good, size_t header, const std::string& path) {
        std::mt19937_64 random(12);
        Tally tally;
        for (int i = 0; i < 50; ++i) {
            // Half of the cuts in the header, half anywhere.
            const size_t length = random() % (i % 2 == 0 ? header : good.size());
            test::write_all(path, std::string_view(good).substr(0, length));
            SCOPED_TRACE(length);
            try_load(load_path_.empty() ? path : load_path_, tally);
        }
        EXPECT_EQ(tally.loaded, 0);
    }
    test::TempDir dir_;
    std::string load_path_;
};

TEST_F(Hostile, Gguf) {
    const std::string good = test::read_all(test::data_path("llama.gguf"));
    const size_t header = GgufFile::parse(test::as_span(good))->header().size();
    cut(good, header, dir_.file("m.gguf"));
    flip(good, header, dir_.file("m.gguf"), 200);
    // The first kilobyte holds the counts and the sizes.
    flip(good, 1024, dir_.file("m.gguf"), 200);
}

TEST_F(Hostile, Safetensors) {
    test::copy_model("mistral", dir_);
    load_path_ = dir_.path();
    const std::string good = test::read_all(test::data_path("mistral/model.safetensors"));
    const size_t header = SafetensorsFile::parse(test::as_span(good))->header().size();
    cut(good, header, dir_.file("model.safetensors"));
    flip(good, header, dir_.file("model.safetensors"), 200);
    flip(good, 8, dir_.file("model.safetensors"), 50);
}

TEST_F(Hostile, SideFilesOfADirectory) {
    test::copy_model("mistral", dir_);
    load_path_ = dir_.path();
    for (const std::string name :
         {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
        const std::string good = test::read_all(test::data_path("mistral/" + name));
        std::mt19937_64 random(13);
        for (int i = 0; i < 100; ++i) {
            std::string bad = good;
            if (i % 2 == 0) {
                bad[random() % bad.size()] = static_cast<char>(random());
            } else {
                bad.resize(random() % bad.size());
            }
            test::write_all(dir_.file(name), bad);
            SCOPED_TRACE(name + " " + std::to_string(i));
            Tally tally;
            try_load(load_path_, tally);
        }
        test::write_all(dir_.file(name), good);
    }
}

}  // namespace
}  // namespace baton::model

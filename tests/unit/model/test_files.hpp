#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace baton::model::test {

inline std::string data_path(const std::string& name) {
    return std::string(BATON_TEST_DATA) + "/model/" + name;
}

inline std::string read_all(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    EXPECT_TRUE(in.good()) << path;
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_all(const std::string& path, std::string_view text) {
    std::ofstream out(path, std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    ASSERT_TRUE(out.good()) << path;
}

inline std::span<const std::byte> as_span(const std::string& s) {
    return std::as_bytes(std::span(s.data(), s.size()));
}

/// A directory that goes away with the object.
class TempDir {
  public:
    TempDir() {
        std::string pattern = testing::TempDir() + "baton-model-XXXXXX";
        path_ = ::mkdtemp(pattern.data());
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

/// Copies a model directory of tests/data/model so that a test can change its files.
inline void copy_model(const std::string& name, const TempDir& to) {
    std::filesystem::copy(data_path(name), to.path(), std::filesystem::copy_options::recursive);
}

/// Little-endian bytes, appended field by field.
class Bytes {
  public:
    std::string out;
    template <class T>
    Bytes& num(T v) {
        out.append(reinterpret_cast<const char*>(&v), sizeof v);
        return *this;
    }
    Bytes& str(std::string_view s) {
        num<uint64_t>(s.size());
        out += s;
        return *this;
    }
};

/// Writes GGUF files, right or wrong, for tests of the reader.
class GgufWriter {
  public:
    uint32_t version = 3;
    Bytes keys;
    uint64_t key_count = 0;
    Bytes infos;
    uint64_t tensor_count = 0;
    std::string data;
    size_t alignment = 32;

    template <class T>
    GgufWriter& key(std::string_view name, uint32_t type, T value) {
        keys.str(name).num(type).num(value);
        ++key_count;
        return *this;
    }
    GgufWriter& key_string(std::string_view name, std::string_view value) {
        keys.str(name).num<uint32_t>(8).str(value);
        ++key_count;
        return *this;
    }
    GgufWriter& key_strings(std::string_view name, const std::vector<std::string>& values) {
        keys.str(name).num<uint32_t>(9).num<uint32_t>(8).num<uint64_t>(values.size());
        for (const std::string& v : values) keys.str(v);
        ++key_count;
        return *this;
    }
    template <class T>
    GgufWriter& key_array(std::string_view name, uint32_t type, const std::vector<T>& values) {
        keys.str(name).num<uint32_t>(9).num(type).num<uint64_t>(values.size());
        for (const T& v : values) keys.num(v);
        ++key_count;
        return *this;
    }
    /// `dims` innermost first, as in the file.
    GgufWriter& info(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                     uint64_t offset) {
        infos.str(name).num(static_cast<uint32_t>(dims.size()));
        for (const uint64_t d : dims) infos.num(d);
        infos.num(type).num(offset);
        ++tensor_count;
        return *this;
    }
    /// A tensor whose bytes are appended to the data.
    GgufWriter& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                       std::string_view bytes) {
        data.resize((data.size() + alignment - 1) / alignment * alignment);
        info(name, dims, type, data.size());
        data += bytes;
        return *this;
    }
    [[nodiscard]] std::string bytes() const {
        Bytes b;
        b.out = "GGUF";
        b.num(version).num(tensor_count).num(key_count);
        b.out += keys.out + infos.out;
        b.out.resize((b.out.size() + alignment - 1) / alignment * alignment);
        return b.out + data;
    }
};

/// A safetensors file of a header text and data.
inline std::string safetensors(std::string_view header, std::string_view data) {
    Bytes b;
    b.str(header);
    b.out += data;
    return b.out;
}

}  // namespace baton::model::test

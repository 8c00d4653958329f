#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "baton/base/ids.hpp"
#include "baton/base/limits.hpp"

/// Encoding of messages between processes (docs/XAVIER.md, byte layouts): little-endian fixed-width numbers, u32 counts
/// before strings and lists, no padding. A struct takes part by a member `template <class V> void fields(V& v)` that
/// passes each field once; new fields are appended at the end and read as their default from an older sender.
namespace baton::wire {

template <class T, class V>
concept HasFields = requires(T t, V v) { t.fields(v); };

/// Where an Encoder's bytes go: counted only, or written into memory that was counted before.
struct CountedBytes {
    size_t count = 0;
    void raw(const void*, size_t n) { count += n; }
};
struct WrittenBytes {
    std::byte* at = nullptr;
    void raw(const void* p, size_t n) {
        if (n == 0) return;
        std::memcpy(at, p, n);
        at += n;
    }
};

/// Passes the bytes of fields on to `Out`.
template <class Out>
class Encoder {
  public:
    explicit Encoder(Out& out) : out_(out) {}
    template <class T>
        requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
    void operator()(const T& v) {
        if constexpr (std::is_same_v<T, bool>) {
            put(static_cast<uint8_t>(v ? 1 : 0));
        } else if constexpr (std::is_enum_v<T>) {
            put(static_cast<std::underlying_type_t<T>>(v));
        } else {
            put(v);
        }
    }
    template <class Tag>
    void operator()(const Id<Tag>& id) { put(id.value); }
    void operator()(const std::string& s) {
        put(static_cast<uint32_t>(s.size()));
        out_.raw(s.data(), s.size());
    }
    template <size_t N>
    void operator()(const std::array<uint8_t, N>& a) { out_.raw(a.data(), N); }
    template <class A, class B>
    void operator()(const std::pair<A, B>& p) {
        (*this)(p.first);
        (*this)(p.second);
    }
    template <class T>
    void operator()(const std::vector<T>& v) {
        put(static_cast<uint32_t>(v.size()));
        if constexpr (std::is_arithmetic_v<T>) {
            out_.raw(v.data(), v.size() * sizeof(T));  // prompts have thousands
        } else {
            for (const T& x : v) (*this)(x);
        }
    }
    template <class T>
        requires HasFields<T, Encoder>
    void operator()(const T& t) {
        const_cast<T&>(t).fields(*this);  // fields() is one function for reading and writing
    }

  private:
    template <class T>
    void put(T v) {
        static_assert(std::endian::native == std::endian::little);
        out_.raw(&v, sizeof v);
    }
    Out& out_;
};

/// Reads fields from bytes of an untrusted peer. After any failure `ok()` is false and every further read gives a
/// default; nothing is allotted beyond what the remaining bytes could hold.
class Decoder {
  public:
    static constexpr size_t kReservedMax = 64;  ///< elements for which room is made before they are read
    explicit Decoder(std::span<const std::byte> in) : in_(in) {}
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] size_t left() const { return in_.size(); }

    template <class T>
        requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
    void operator()(T& v) {
        if constexpr (std::is_same_v<T, bool>) {
            uint8_t u = 0;
            get(u);
            v = u != 0;
        } else if constexpr (std::is_enum_v<T>) {
            std::underlying_type_t<T> u{};
            get(u);
            v = static_cast<T>(u);
        } else {
            get(v);
        }
    }
    template <class Tag>
    void operator()(Id<Tag>& id) { get(id.value); }
    void operator()(std::string& s) {
        const size_t n = count(1, limits::kWireStringBytesMax);
        s.assign(reinterpret_cast<const char*>(in_.data()), n);
        in_ = in_.subspan(n);
    }
    template <size_t N>
    void operator()(std::array<uint8_t, N>& a) {
        if (!need(N)) return;
        std::memcpy(a.data(), in_.data(), N);
        in_ = in_.subspan(N);
    }
    template <class A, class B>
    void operator()(std::pair<A, B>& p) {
        (*this)(p.first);
        (*this)(p.second);
    }
    template <class T>
    void operator()(std::vector<T>& v) {
        const size_t n = count(1, limits::kContextTokensMax);
        v.clear();
        if constexpr (std::is_arithmetic_v<T>) return numbers(v, n);
        v.reserve(std::min(n, kReservedMax));
        for (size_t i = 0; i < n && ok_; ++i) {
            v.emplace_back();
            (*this)(v.back());
            if (ended_) ok_ = false;  // only the fields of the message itself may be missing
        }
        if (!ok_) v.clear();
    }
    template <class T>
        requires HasFields<T, Decoder>
    void operator()(T& t) {
        t.fields(*this);
    }

  private:
    bool need(size_t n) {
        // At the end of the bytes between two fields an older sender simply stopped: keep defaults.
        if (in_.size() < n) {
            if (!in_.empty()) ok_ = false;
            ended_ = true;
            in_ = {};
            return false;
        }
        return ok_;
    }
    template <class T>
    void get(T& v) {
        if (!need(sizeof v)) return;
        std::memcpy(&v, in_.data(), sizeof v);
        in_ = in_.subspan(sizeof v);
    }
    template <class T>
    void numbers(std::vector<T>& v, size_t n) {
        if (n == 0) return;
        if (n > in_.size() / sizeof(T)) {  // only the fields of the message itself may be missing
            ok_ = false;
            in_ = {};
            return;
        }
        v.resize(n);
        std::memcpy(v.data(), in_.data(), n * sizeof(T));
        in_ = in_.subspan(n * sizeof(T));
    }
    size_t count(size_t min_element_bytes, size_t max) {
        uint32_t n = 0;
        get(n);
        if (n > max || n > in_.size() / min_element_bytes) {
            ok_ = false;
            in_ = {};
            return 0;
        }
        return n;
    }
    std::span<const std::byte> in_;
    bool ok_ = true;
    bool ended_ = false;
};

}  // namespace baton::wire

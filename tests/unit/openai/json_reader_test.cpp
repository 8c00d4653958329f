#include "openai/json_reader.hpp"

#include <gtest/gtest.h>

#include <random>

#include "openai/json.hpp"
#include "unit/mutate.hpp"

namespace baton::openai {
namespace {

/// Builds with the library's own means.
struct Events {
    using number_integer_t = Json::number_integer_t;
    using number_unsigned_t = Json::number_unsigned_t;
    using number_float_t = Json::number_float_t;
    using string_t = Json::string_t;
    using binary_t = Json::binary_t;
    std::string log;  ///< every event with its value, unmistakable
    int depth = 0;

    bool tell(std::string event) {
        log += event + '\x1f';
        return true;
    }
    bool null() { return tell("null"); }
    bool boolean(bool v) { return tell(v ? "true" : "false"); }
    bool number_integer(int64_t v) { return tell("i" + std::to_string(v)); }
    bool number_unsigned(uint64_t v) { return tell("u" + std::to_string(v)); }
    bool number_float(double v, const std::string&) {
        return tell("f" + Json(v).dump());
    }
    bool string(std::string& v) { return tell("s" + v); }
    bool key(std::string& v) { return tell("k" + v); }
    bool binary(binary_t&) { return false; }
    bool start_object(size_t) { return ++depth <= 64 && tell("{"); }
    bool end_object() { return --depth >= 0 && tell("}"); }
    bool start_array(size_t) { return ++depth <= 64 && tell("["); }
    bool end_array() { return --depth >= 0 && tell("]"); }
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }
};

struct Outcome {
    bool ok;
    std::string log;
};
Outcome ours(std::string_view text) {
    Events events;
    const bool ok = JsonReader(text, events).run();
    return {ok, events.log};
}
Outcome librarys(std::string_view text) {
    Events events;
    const bool ok = Json::sax_parse(text, &events, Json::input_format_t::json, true, false);
    return {ok, events.log};
}

/// What we accept the library accepts, with the same events in the same order.
void expect_agreement(std::string_view text) {
    const Outcome mine = ours(text);
    if (!mine.ok) return;
    const Outcome theirs = librarys(text);
    EXPECT_TRUE(theirs.ok) << text;
    EXPECT_EQ(mine.log, theirs.log) << text;
}

TEST(JsonReader, ReadsWhatClientsSend) {
    for (const std::string_view text :
         {R"({"model":"m","messages":[{"role":"user","content":"a \"b\" \\ \/ \b\f\n\r\t é 你 😀"}],"n":1})",
          R"( [ 0 , -0 , 1.5 , -2e3 , 1E+2 , 0.1e-7 , 999999999999999999 , -999999999999999999 ] )",
          R"(["\u0000\u0041\u00e9\u20ac\ud83d\ude00\uFFFF\u07ff\u0800"])", "[[],{},[{}],\"\"]",
          "true", "null", " 12 ", "\"x\"", "\r\n\t{ \"a\" : null }\n"}) {
        EXPECT_TRUE(ours(text).ok) << text;
        expect_agreement(text);
    }
}

TEST(JsonReader, NeverTakesWhatTheLibraryRefuses) {
    for (const std::string_view text :
         {"", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "[01]", "[-]", "[1.]", "[.5]", "[1e]", "[+1]",
          "nul", "truex", "[1 2]", "{\"a\" 1}", "\"\x01\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"",
          "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xFF\"",
          "\"\xF4\x90\x80\x80\"", "\"open", "1 2", "[1]]", "NaN", "[Infinity]", "'a'", "/**/1"}) {
        EXPECT_FALSE(librarys(text).ok) << text;
        EXPECT_FALSE(ours(text).ok) << text;
    }
}

TEST(JsonReader, AgreesOnMutatedTexts) {
    constexpr std::string_view kSeeds[] = {
        R"({"a":[1,-2,3.25e2,"x\u00e9\ud83d\ude00\n"],"b":{"c":null,"d":true},"e":"é你😀"})",
        R"([0.5,-0,1e10,123456789012345678,"\\\"\/",{},[],false])"};
    constexpr std::string_view kBytes = "{}[]:,\"\\ue019-+.Ettrue nul\x01\x7f\xc3\xa9\xed\xa0\x80\xf0\n";
    std::mt19937 rng(7);
    size_t accepted = 0;
    for (int i = 0; i < 60'000; ++i) {
        std::string text(kSeeds[rng() % 2]);
        for (auto n = rng() % 4; n > 0; --n) test::mutate(text, kBytes, rng);
        accepted += ours(text).ok ? 1 : 0;
        expect_agreement(text);
    }
    EXPECT_GT(accepted, 10'000u);
}

std::string librarys_print(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TEST(JsonDump, PrintsAsTheLibraryDoes) {
    std::string all;
    for (int c = 0; c < 0x80; ++c) all.push_back(static_cast<char>(c));
    const Json values[] = {
        Json{{"a", all}, {all, Json::array({1, -1, UINT64_MAX, INT64_MIN, 0.1, 1.0, -1e300, 1e-7})}},
        Json("é你😀"), Json("bad \xFF\xC0 bytes"), Json{{"bad \xED\xA0\x80", 1}}, Json(nullptr), Json(true),
        Json::array(), Json::object(), Json{{"x", Json::array({Json::object(), false, nullptr, "s"})}}};
    for (const Json& value : values) EXPECT_EQ(dump(value), librarys_print(value));
    std::mt19937 rng(3);
    for (int i = 0; i < 3000; ++i) {
        std::string text;
        for (auto n = rng() % 12; n > 0; --n) text.push_back(static_cast<char>(rng()));
        EXPECT_EQ(dump(Json(text)), librarys_print(Json(text)));
    }
}

}  // namespace
}  // namespace baton::openai

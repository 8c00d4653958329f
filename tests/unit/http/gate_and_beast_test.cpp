/// Two readers of the same bytes: whatever the gate admits, Beast must read as the same request,
/// ending at the same byte. (Not the other way round: what Beast takes and the gate refuses is why
/// the gate is there, docs/decisions/004.)

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "http/request_parser.hpp"
#include "unit/mutate.hpp"

namespace baton::http {
namespace {

using namespace std::string_view_literals;  // NOLINT

struct Reading {
    std::string method, target, body;
    Headers headers;
    bool http_1_0 = false;
    bool keep_alive = false;
    size_t bytes = 0;
};

std::optional<Reading> read_with_gate(std::string_view wire) {
    RequestParser parser{ParserLimits{}};
    Reading out;
    for (;;) {
        size_t consumed = 0;
        const auto event = parser.feed(wire.substr(out.bytes), consumed);
        out.bytes += consumed;
        if (event == RequestParser::Event::kHead) continue;
        if (event != RequestParser::Event::kDone) return std::nullopt;
        Request& request = parser.request();
        out.method = request.method;
        out.target = request.target;
        out.body = request.body;
        out.headers = request.headers;
        out.http_1_0 = request.http_1_0;
        out.keep_alive = parser.keep_alive();
        return out;
    }
}

std::optional<Reading> read_with_beast(std::string_view wire) {
    namespace bhttp = boost::beast::http;
    bhttp::request_parser<bhttp::string_body> parser;
    parser.header_limit(2 * limits::kHeaderBytesMax);
    parser.body_limit(limits::kBodyBytesMax);
    boost::beast::error_code ec;
    Reading out;
    while (!parser.is_header_done()) {
        out.bytes += parser.put(boost::asio::buffer(wire.substr(out.bytes)), ec);
        if (ec) return std::nullopt;
    }
    for (const auto& field : parser.get()) {  // before trailers get in
        out.headers.emplace_back(to_lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value().data(), field.value().size()));
    }
    parser.eager(true);
    while (!parser.is_done()) {
        if (out.bytes == wire.size()) return std::nullopt;  // the body is longer
        out.bytes += parser.put(boost::asio::buffer(wire.substr(out.bytes)), ec);
        if (ec) return std::nullopt;
    }
    out.method = std::string(parser.get().method_string());
    out.target = std::string(parser.get().target());
    out.body = parser.get().body();
    out.http_1_0 = parser.get().version() == 10;
    out.keep_alive = parser.keep_alive();
    return out;
}

class Wire {
  public:
    explicit Wire(uint32_t seed) : random_(seed) {}

    std::string request() {
        std::string body;
        std::string out =
            pick({"GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "get", "BREW"}) + " " +
            pick({"/", "/v1/models?a=b", "/%41", "http://h/x", "*", "/a b", "/\x80"}) + " " +
            pick({"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0"}) + eol();
        std::vector<std::string> fields{"Host: a"};
        for (size_t i = below(4); i > 0; --i) fields.push_back(field());
        const size_t framing = below(8);
        if (framing < 3) {
            body = std::string(below(40), 'b');
            fields.push_back("Content-Length: " + std::to_string(body.size()));
        } else if (framing < 6) {
            fields.push_back("Transfer-Encoding: chunked");
            body = chunks();
        } else if (framing == 6) {
            fields.push_back(pick({"Transfer-Encoding: gzip", "Transfer-Encoding: gzip, chunked",
                                   "Content-Length: 3, 3", "Content-Length: +3",
                                   "Transfer-Encoding: chunked\r\nContent-Length: 3"}));
            body = "abc";
        }
        std::shuffle(fields.begin(), fields.end(), random_);
        for (const std::string& line : fields) out += line + eol();
        out += "\r\n" + body;
        if (below(3) == 0) mutate(out);
        return out + "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    }

  private:
    size_t below(size_t bound) { return random_() % bound; }
    std::string pick(const std::vector<std::string>& from) { return from[below(from.size())]; }
    std::string eol() { return below(60) == 0 ? "\n" : "\r\n"; }
    std::string field() {
        return pick({"X-A: 1", "x-a:2", "X-A:\t \tv w \t", "Accept: */*", "Connection: close",
                     "Connection: keep-alive, X-A", "Cookie: a=\xE9; b", "Expect: 100-continue",
                     "X-Empty:", "X: a:b:c", "Host: b", "X-A : 1", "X\tA: 1", " folded",
                     "X-Nul: a\x01", "Keep-Alive: timeout=5"});
    }
    std::string chunks() {
        std::string out;
        for (size_t i = below(4); i > 0; --i) {
            const size_t size = 1 + below(20);
            constexpr std::string_view kHex = "0123456789aBcDeF";
            if (size >= 16) out += kHex[size / 16];
            out += kHex[size % 16];
            out +=
                pick({"", "", ";a=b", ";a", ";q=\"x y\""}) + eol() + std::string(size, 'c') + eol();
        }
        return out + "0" + eol() + pick({"", "", "X-Trailer: t\r\n", "Content-Type: x\r\n"}) +
               eol();
    }
    void mutate(std::string& text) {
        test::mutate(text, "\r\n :;,\t0a\x00\x7F\xFF"sv, random_);
    }

    std::mt19937 random_;
};

TEST(GateAndBeast, ReadWhatTheGateAdmitsAlike) {
    size_t admitted = 0;
    size_t refused_by_gate_only = 0;
    for (uint32_t seed = 0; seed < 20'000; ++seed) {
        const std::string wire = Wire(seed).request();
        const auto gate = read_with_gate(wire);
        const auto beast = read_with_beast(wire);
        if (!gate) {
            refused_by_gate_only += beast ? 1 : 0;
            continue;
        }
        ++admitted;
        ASSERT_TRUE(beast.has_value()) << seed << "\n" << wire;
        EXPECT_EQ(gate->method, beast->method) << wire;
        EXPECT_EQ(gate->target, beast->target) << wire;
        EXPECT_EQ(gate->body, beast->body) << wire;
        EXPECT_EQ(gate->http_1_0, beast->http_1_0) << wire;
        // Of "close" and "keep-alive" together, the gate takes the one that ends the connection.
        EXPECT_LE(gate->keep_alive, beast->keep_alive) << wire;
        EXPECT_EQ(gate->bytes, beast->bytes) << wire;
        Headers ours = gate->headers;
        Headers theirs = beast->headers;  // Beast brings fields of one name together
        const auto by_name = [](const Header& a, const Header& b) { return a.first < b.first; };
        std::stable_sort(ours.begin(), ours.end(), by_name);
        std::stable_sort(theirs.begin(), theirs.end(), by_name);
        EXPECT_EQ(ours, theirs) << wire;
        if (HasFailure()) return;
    }
    EXPECT_GT(admitted, 2'000u);
    EXPECT_GT(refused_by_gate_only, 300u);
}

}  // namespace
}  // namespace baton::http

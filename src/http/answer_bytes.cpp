/// The bytes of answers: Beast writes heads and chunk frames. With client.cpp the only code here
/// that includes Beast (docs/decisions/004).

#include "http/answer_bytes.hpp"

#include <algorithm>
#include <array>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <ctime>

#include "baton/base/limits.hpp"
#include "http/request_parser.hpp"

namespace baton::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;

std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    ::gmtime_r(&now, &utc);
    std::array<char, 40> text{};
    const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
    return {text.data(), size};
}

/// A header of a handler must not be able to start another one; Beast writes what it is given, and
/// throws at 64 KiB.
bool is_safe(const Header& header) {
    return header.first.size() + header.second.size() <= limits::kHeaderBytesMax &&
           is_token(header.first) &&
           std::none_of(header.second.begin(), header.second.end(), [](char c) {
               return (static_cast<uint8_t>(c) < 0x20 && c != '\t') || c == 0x7F;
           });
}

template <typename Buffers>
void append_buffers(std::string& out, const Buffers& buffers) {
    for (const asio::const_buffer piece : beast::buffers_range_ref(buffers))
        out.append(static_cast<const char*>(piece.data()), piece.size());
}

}  // namespace

std::string format_head(const AnswerForm& form, int status, std::string_view content_type,
                        int64_t length, const Headers& headers, bool keep_alive) {
    using beast::http::field;
    beast::http::response<beast::http::empty_body> head;
    head.version(11);
    head.result(static_cast<unsigned>(status));
    head.reason(reason_phrase(status));
    head.insert(field::server, "baton");
    head.insert(field::date, http_date());
    if (status != 204 && status != 304) {
        head.insert(field::content_type, content_type);
        head.insert("X-Content-Type-Options", "nosniff");
        if (length >= 0) {
            head.content_length(static_cast<uint64_t>(length));
        } else if (!form.http_1_0) {
            head.chunked(true);
        }
    }
    for (const Headers* list : {&headers, &form.extra}) {
        for (const Header& header : *list) {
            if (is_safe(header)) head.insert(header.first, header.second);
        }
    }
    head.insert(field::connection, keep_alive ? "keep-alive" : "close");

    std::string out;
    out.reserve(512);
    beast::http::response_serializer<beast::http::empty_body> serializer(head);
    serializer.split(true);  // the body goes its own way, through the channel
    beast::error_code ec;
    while (!ec && !serializer.is_header_done()) {
        serializer.next(ec, [&](beast::error_code&, const auto& buffers) {
            append_buffers(out, buffers);
            serializer.consume(beast::buffer_bytes(buffers));
        });
    }
    return out;
}

void append_chunk(std::string& out, std::string_view bytes) {
    append_buffers(out, beast::http::make_chunk(asio::buffer(bytes)));
}

void append_last_chunk(std::string& out) {
    append_buffers(out, beast::http::make_chunk_last());
}

}  // namespace baton::http

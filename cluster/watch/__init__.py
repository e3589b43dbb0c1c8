"""The live page: what a subscription is doing, seen by a person.

`story` turns the statistics of the owners into a picture and into events (plain code, no I/O); `feed` asks the owners
while a page is open and sends both as server-sent events; `page/` is what the browser shows. Everything comes from the
same statistics that `sluice topics stats` and the metrics show: the page owns nothing and costs nothing unwatched.
"""

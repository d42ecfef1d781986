"""The layers of FlexFlow's networks as operators that are placed on devices (`benchmarks.papers._placed`)."""

from __future__ import annotations

from benchmarks.papers._placed import Layer

WORDS = 32_000
"""Of the vocabulary of NMT on either side, as in `benchmarks.models`."""
NUM_STEPS = 40


def _embedding(batch: int, words: int, width: int) -> Layer:
    return Layer(name="embed", result_bytes=4.0 * batch * width, weight_bytes=4.0 * words * width)


def _lstm(batch: int, inner: int, width: int, *reads: tuple[int, int]) -> Layer:
    return Layer(
        name="lstm", rows=batch, inner=inner + width, columns=4 * width, result_bytes=4.0 * batch * width,
        weight_bytes=16.0 * (inner + width) * width, reads=reads,
    )  # fmt: skip


def _dense(name: str, batch: int, inner: int, columns: int, *reads: tuple[int, int]) -> Layer:
    return Layer(
        name=name, rows=batch, inner=inner, columns=columns, result_bytes=4.0 * batch * columns,
        weight_bytes=4.0 * inner * columns, reads=reads,
    )  # fmt: skip


def language_model(batch: int, words: int, embedded: int, width: int, num_layers: int) -> list[Layer]:
    """Embedding, LSTMs, and a softmax over the words at every step."""
    layers = [_embedding(batch, words, embedded)]
    for k in range(1, num_layers + 1):
        layers.append(_lstm(batch, embedded if k == 1 else width, width, (k - 1, 0), (k, 1)))
    return [*layers, _dense("softmax", batch, width, words, (num_layers, 0))]


def classifier(batch: int, width: int = 1024, num_layers: int = 4) -> list[Layer]:
    """RNNTC: four LSTMs and a softmax of two classes, at every step as the others are."""
    return language_model(batch, 2, width, width, num_layers)


def translation(batch: int, width: int = 1024) -> list[Layer]:
    """NMT: 2 + 2 LSTMs, attention to the encoder, softmax; each decoder step reads the encoder's of the same step."""
    return [
        _embedding(batch, WORDS, width),
        _lstm(batch, width, width, (0, 0), (1, 1)),
        _lstm(batch, width, width, (1, 0), (2, 1)),
        _embedding(batch, WORDS, width),
        _lstm(batch, width, width, (3, 0), (4, 1)),
        _lstm(batch, width, width, (4, 0), (5, 1)),
        _dense("attention", batch, 2 * width, width, (2, 0), (5, 0)),
        _dense("softmax", batch, width, WORDS, (6, 0)),
    ]


class _Images:
    """Convolutions, one after the other; a place is (operator, side of the image, channels)."""

    def __init__(self, batch: int, side: int, channels: int) -> None:
        self.batch, self.layers = batch, list[Layer]()
        self.image = (-1, side, channels)

    def conv(
        self,
        place: tuple[int, int, int],
        width: int,
        size: tuple[int, int],
        stride: int = 1,
        valid: bool = False,
    ) -> tuple[int, int, int]:
        """A convolution of the operator at a place; its batch normalisation runs with it."""
        source, side, channels = place
        side = (side - size[0]) // stride + 1 if valid else -(-side // stride)
        rows, inner = self.batch * side * side, channels * size[0] * size[1]
        self.layers.append(
            Layer(
                name="conv", rows=rows, inner=inner, columns=width, result_bytes=4.0 * rows * width,
                weight_bytes=4.0 * inner * width, reads=((source, 0),) if source >= 0 else (),
            )
        )  # fmt: skip
        return len(self.layers) - 1, side, width

    def joined(self, name: str, places: list[tuple[int, int, int]], stride: int = 1) -> tuple[int, int, int]:
        """Branches side by side, or a pooling of one: bytes alone."""
        channels = sum(of for _, _, of in places)
        side = (places[0][1] - 3) // 2 + 1 if stride == 2 else places[0][1]
        self.layers.append(
            Layer(
                name=name,
                result_bytes=4.0 * self.batch * side * side * channels,
                reads=tuple(sorted((k, 0) for k, _, _ in places)),
            )
        )
        return len(self.layers) - 1, side, channels


    def added(self, one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
        """The sum of two results of equal shape."""
        _, side, channels = one
        reads = tuple(sorted((k, 0) for k, _, _ in (one, other)))
        self.layers.append(Layer(name="sum", result_bytes=4.0 * self.batch * side * side * channels, reads=reads))
        return len(self.layers) - 1, side, channels


_ONE, _THREE, _FIVE = (1, 1), (3, 3), (5, 5)


def inception(batch: int) -> list[Layer]:
    """Inception-v3 on images of 299 x 299, operator by operator (arXiv 1512.00567, as `benchmarks.models` has it)."""
    net = _Images(batch, 299, 3)

    def chain(place: tuple[int, int, int], *pieces: tuple[int, tuple[int, int]]) -> tuple[int, int, int]:
        for width, size in pieces:
            place = net.conv(place, width, size)
        return place

    def pooled(place: tuple[int, int, int], width: int) -> tuple[int, int, int]:
        return net.conv(net.joined("pool", [place]), width, _ONE)

    x = net.conv(net.image, 32, _THREE, 2, valid=True)
    x = net.conv(x, 32, _THREE, valid=True)
    x = net.joined("pool", [net.conv(x, 64, _THREE)], 2)
    x = net.joined("pool", [net.conv(net.conv(x, 80, _ONE), 192, _THREE, valid=True)], 2)
    for width in (32, 64, 64):
        parts = [net.conv(x, 64, _ONE), chain(x, (48, _ONE), (64, _FIVE))]
        parts += [chain(x, (64, _ONE), (96, _THREE), (96, _THREE)), pooled(x, width)]
        x = net.joined("concat", parts)
    threes = net.conv(chain(x, (64, _ONE), (96, _THREE)), 96, _THREE, 2, valid=True)
    x = net.joined("concat", [net.conv(x, 384, _THREE, 2, valid=True), threes, net.joined("pool", [x], 2)])
    for width in (128, 160, 160, 192):
        short = chain(x, (width, _ONE), (width, (1, 7)), (192, (7, 1)))
        long = chain(x, (width, _ONE), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
        x = net.joined("concat", [net.conv(x, 192, _ONE), short, long, pooled(x, 192)])
    one = net.conv(net.conv(x, 192, _ONE), 320, _THREE, 2, valid=True)
    other = net.conv(chain(x, (192, _ONE), (192, (1, 7)), (192, (7, 1))), 192, _THREE, 2, valid=True)
    x = net.joined("concat", [one, other, net.joined("pool", [x], 2)])
    for _ in range(2):
        forks = [
            net.conv(y, 384, size)
            for y in (net.conv(x, 384, _ONE), chain(x, (448, _ONE), (384, _THREE)))
            for size in ((1, 3), (3, 1))
        ]
        x = net.joined("concat", [net.conv(x, 320, _ONE), *forks, pooled(x, 192)])
    return [*net.layers, _dense("dense", batch, 2048, 1000, (x[0], 0))]


def alexnet(batch: int) -> list[Layer]:
    """AlexNet on images of 227 x 227, in one column: five convolutions, three poolings, three dense layers."""
    net = _Images(batch, 227, 3)
    x = net.joined("pool", [net.conv(net.image, 64, (11, 11), 4, valid=True)], 2)
    x = net.joined("pool", [net.conv(x, 192, _FIVE)], 2)
    for width in (384, 256, 256):
        x = net.conv(x, width, _THREE)
    place, side, channels = net.joined("pool", [x], 2)
    inner = side * side * channels
    for columns in (4096, 4096, 1000):
        net.layers.append(_dense("dense", batch, inner, columns, (place, 0)))
        place, inner = len(net.layers) - 1, columns
    return net.layers


def resnet(batch: int, stages: tuple[int, ...] = (3, 4, 23, 3)) -> list[Layer]:
    """ResNet-101 on images of 224 x 224: blocks of three convolutions and a sum."""
    net = _Images(batch, 224, 3)
    x = net.joined("pool", [net.conv(net.image, 64, (7, 7), 2)], 2)
    for stage, count in enumerate(stages):
        width = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            long = net.conv(net.conv(net.conv(x, width, _ONE), width, _THREE, stride), 4 * width, _ONE)
            short = x if block else net.conv(x, 4 * width, _ONE, stride)
            x = net.added(long, short)
    return [*net.layers, _dense("dense", batch, 2048, 1000, (x[0], 0))]

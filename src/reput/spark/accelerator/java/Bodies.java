package reput.accelerator;

import com.github.luben.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.InflaterInputStream;
import net.jpountz.lz4.LZ4FrameInputStream;

/** Decompression of bodies, with the JDK's zlib and the codecs that Spark brings. */
final class Bodies {
  private Bodies() {}

  /**
   * Returns a decompressed body.
   *
   * @throws IOException if it is not of the type in {@code sysFlag}, ends early, has an unknown
   *     type, or decompresses to more than {@code bytesMax}
   */
  static byte[] decompress(byte[] stored, int sysFlag, int bytesMax) throws IOException {
    try (InputStream stream = streamOf(new ByteArrayInputStream(stored), sysFlag)) {
      byte[] body = stream.readNBytes(bytesMax);
      if (stream.read() >= 0) {
        throw new IOException("body unpacks to more than " + bytesMax + " bytes");
      }
      return body;
    }
  }

  private static InputStream streamOf(InputStream stored, int sysFlag) throws IOException {
    int kind = (sysFlag & Layout.COMPRESSION_TYPE_MASK) >> 8;
    return switch (kind) {
      case 0, 3 -> new InflaterInputStream(stored);
      case 1 -> new LZ4FrameInputStream(stored);
      case 2 -> new ZstdInputStream(stored);
      default -> throw new IOException("body has compression type " + kind);
    };
  }
}
